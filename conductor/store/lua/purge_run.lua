-- purge_run: a run that has ended leaves the store with all its keys; its graph goes with the last run that used it.
-- `at_event` is given by who has put it into the archive: a run that a retry has moved since is not what was put (CHANGED).
-- Whoever erases it names its `key` (workflow, lane and key), which goes too, also where the run itself had left: no start finds it any more.
--! args: caller number run_id due_only at_event key
--! use: partition clock token run step whole
--! result: OK | NOT_ENDED | NOT_DUE | CHANGED | UNKNOWN
if told then return told end
local run = run_of(run_id)
local function drop_key()
  if key == NIL then return end
  local name = P .. 'key:' .. key
  if string.sub(redis.call('GET', name) or NIL, 1, #run_id) == run_id then redis.call('DEL', name) end
end
if not run then drop_key(); return tell({'UNKNOWN'}) end
if not ended(run) then return tell({'NOT_ENDED'}) end

if due_only == '1' and num(redis.call('ZSCORE', P .. 'ended:' .. run.st, run_id)) > now then return tell({'NOT_DUE'}) end
if at_event ~= NIL and redis.call('LLEN', run.key .. ':log') ~= tonumber(at_event) then return tell({'CHANGED'}) end

-- What a run has called stays as long as the run may still ask for it: one that is paused may be paused for long, and one that failed may be
-- retried. A child's result is taken over at once, but an operation may have ended without anybody having heard of it.
if due_only == '1' and run.up ~= NIL then
  local parent = above(run)
  if parent and (not ended(parent) or (is_op(run) and parent.st == RUN_FAILED)) then
    redis.call('ZADD', P .. 'ended:' .. run.st, 'XX', int(now + 3600000), run_id)
    return tell({'NOT_DUE'})
  end
end

unlink_all(keys_of(run))
redis.call('ZREM', P .. (is_op(run) and 'ops' or 'runs'), run_id)
for state in pairs(TERMINAL) do redis.call('ZREM', P .. 'ended:' .. state, run_id) end
forget_graph(run.h)
drop_key()
return tell({'OK'})
