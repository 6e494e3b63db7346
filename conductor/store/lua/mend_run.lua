-- mend_run: a run that nothing could move goes on: entries that are missing are put back, counters are what its log says, and if nothing is
-- left to do it is closed. The plan was made outside from what the log said at `at_event`; if the log has grown since, nothing is written.
-- After the named arguments: `lost` triples (place, index, item), then `unlisted` indexes of eaches.
--! args: caller number run_id at_event ready active due waiters agents waiting lost unlisted
--! use: partition clock token run save step each waiters ready lane bound undo close
--! result: OK | CHANGED | ENDED | UNKNOWN, then state pokes
if told then return told end
local run = run_of(run_id)
if not run then return tell({'UNKNOWN', '', ''}) end
if ended(run) then return tell({'ENDED', run.st, ''}) end
if redis.call('LLEN', run.key .. ':log') ~= tonumber(at_event) then return tell({'CHANGED', run.st, ''}) end

if not stopping(run) then
  set(run, 'r', tonumber(ready)); set(run, 'a', tonumber(active)); set(run, 'd', tonumber(due))
  set(run, 'o', tonumber(waiters)); set(run, 'oa', tonumber(agents)); set(run, 'wi', waiting)
end
local at = 13
for _ = 1, tonumber(lost) do
  local place, index, item = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  at = at + 3
  if item ~= NIL then item = tonumber(item) end
  local d = descriptor(run, index)
  if place == 'ready' then
    fresh[#fresh + 1] = {queue = queue_of(run, d), score = score_of(run, d), member = ref(run, index, item)}
  elseif place == 'leases' then
    leases[#leases + 1] = int(now); leases[#leases + 1] = ref(run, index, item)
  else
    redis.call('ZADD', P .. 'due', int(now), place .. ':' .. ref(run, index, item))
  end
end
for i = 1, tonumber(unlisted) do
  local index = tonumber(ARGV[at + i - 1])
  local e = each_of(run, index)
  bump(e, 'listed', 1 - e.listed)
  fresh[#fresh + 1] = {queue = queue_of(run, descriptor(run, index)), score = score_of(run, descriptor(run, index)), member = run.id .. ':' .. index}
end
settle(run, 'step_failed')
progress(run)
save_ready()
save_runs()
keep_clock()
write_all()
return tell({'OK', run.st, table.concat(pokes, ',')})
