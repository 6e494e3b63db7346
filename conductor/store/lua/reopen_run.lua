-- reopen_run: failed → running in a new generation, or paused by a failure → running in the same one. The plan was made outside from what
-- the log said at `at_event`; if the log has grown since, nothing is written (CHANGED). Completed steps and items stay.
-- After the named arguments: `resets` triples (index, record, state before), then `eaches` indexes, whose items begin anew in batches (MORE).
-- With `only_generation` it is done to that life of the run and no other (SUPERSEDED): a batch that is repeated retries nothing twice.
-- In a lane it asks for a place again, like a start; items begin anew while it is queued too, but stand only when it has been admitted.
--! args: caller number run_id at_event fresh_generation actor only_generation steps hooks pages resets eaches
--! use: partition clock token run save step each waiters ready anew lane bound undo close
--! result: OK | MORE | CHANGED | SUPERSEDED | REFUSED | LANE_FULL | UNKNOWN, then state pokes
if told then return told end
local run = run_of(run_id)
if not run then return tell({'UNKNOWN', '', ''}) end
if only_generation ~= NIL and run.g ~= tonumber(only_generation) then return tell({'SUPERSEDED', run.st, ''}) end
local wanted = fresh_generation == '1' and run.st == RUN_FAILED or (fresh_generation == '0' and run.st == RUN_PAUSED and run.ph == 'U' and run.a == 0)
-- What it had completed was undone: there is nothing to go on from.
if redis.call('HEXISTS', run.key, 'un') == 1 then wanted = false end
if not wanted then return tell({'REFUSED', run.st, ''}) end
if redis.call('LLEN', run.key .. ':log') ~= tonumber(at_event) then return tell({'CHANGED', run.st, ''}) end

if fresh_generation == '1' and run.ln ~= NIL and lane_full(run) then return tell({'LANE_FULL', run.st, ''}) end
if fresh_generation == '1' then
  set(run, 'g', run.g + 1)
  redis.call('ZREM', P .. 'ended:' .. RUN_FAILED, run_id)
  redis.call('HDEL', run.key, 'e', 'ro', 'bl')
  redis.call('ZREM', P .. 'due', 'start:' .. run_id)
  if run.op ~= NIL then release_ops(run) end
  -- The key may have lapsed, or belong to another run by now.
  if run.k ~= NIL then
    local key = key_of(run)
    local owner = redis.call('GET', key)
    if not owner then redis.call('SET', key, run_id .. ';' .. (redis.call('HGET', run.key, 'kd') or NIL))
    elseif string.sub(owner, 1, #run_id) == run_id then redis.call('PERSIST', key)
    else set(run, 'k', NIL) end
  end
end
redis.call('UNLINK', run.key .. ':held')
set(run, 'ra', int(now))
set(run, 'st', RUN_RUNNING)
for _, field in ipairs({'wy', 'ph', 'oc', 'ow'}) do set(run, field, NIL) end
set(run, 'hk', hooks)
set(run, 'l', tonumber(steps))
for _, field in ipairs({'f', 'r', 'd', 'a'}) do set(run, field, 0) end
forget_waiters(run)
redis.call('HINCRBY', run.key, 'lv', 1)

local at, ready, pending = 13, {}, {}
for i = 1, tonumber(resets) do
  local index, text, was = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  at = at + 3
  -- What the life before left in an index goes with its record.
  if was == RUNNING then unleased[#unleased + 1] = ref(run, index, NIL) end
  if was == RETRY_PENDING then redis.call('ZREM', P .. 'due', 'retry:' .. ref(run, index, NIL)) end
  if was == WAITING then redis.call('ZREM', P .. 'due', (DUE_KIND[descriptor(run, index).kind] or 'timer') .. ':' .. ref(run, index, NIL)) end
  if string.sub(text, 1, 2) == 'P;' then pending[#pending + 1] = index; put(shard(run, index), int(index), text)
  else ready[#ready + 1] = {index, string.sub(text, 3)} end
end
for i = 1, tonumber(eaches) do
  local e = each_of(run, tonumber(ARGV[at + i - 1]))
  redis.call('DEL', e.key .. ':again')
  for _, field in ipairs({'failed', 'active', 'timed', 'listed', 'again'}) do bump(e, field, -e[field]) end
  put(e.key, 'bad', NIL)
  e.anew = e.cursor > 0 and '0-' .. int(e.cursor - 1) or NIL
  put(e.key, 'anew', e.anew)
end
local names, roots = {}, {}
for i, pair in ipairs(ready) do names[i] = pair[1]; roots[i] = pair[1] .. pair[2] end
local queued = fresh_generation == '1' and run.ln ~= NIL and not enter_lane(run, table.concat(roots, ','))
emit(run, 'g', run.g, table.concat(names, ','), table.concat(pending, ','), actor, queued and run.ln or NIL)
if queued then admit(run.ln)
else
  for _, pair in ipairs(ready) do unblock(run, pair[1], pair[2]) end
end
local more = begin_items_anew(run, pages)
if not queued then settle(run, 'step_failed') end
progress(run)
save_ready()
save_runs()
keep_clock()
write_all()
return tell({more and 'MORE' or 'OK', run.st, table.concat(pokes, ',')})
