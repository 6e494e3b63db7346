-- heartbeat: keeps leases, and brings back what a worker must know of its attempts. Each attempt: run index item fence generation lease
--! args: caller number count
--! use: partition clock token run step outcome_guard
--! result: OK now answers (OK | CANCELLED | TERMINATE | LOST)
if told then return {told[1], told[2], list_of(told[3])} end
-- A cancel that stops processes reaches what is bound to the run as well: its children, and the operations of each.
local function is_stopped(run)
  for _ = 0, DEPTH + 1 do
    if not run or run.tm == '1' or run.up == NIL then return run and run.tm == '1' end
    run = above(run)
  end
end
local answers, kept = {}, {}
for i = 0, tonumber(count) - 1 do
  local id, index, item, f, generation, lease = unpack(ARGV, 4 + i * 6, 9 + i * 6)
  local run = run_of(id)
  if item ~= NIL then item = tonumber(item) end
  local rec = run and record(run, tonumber(index), item)
  local answer = answer_for(run, rec, tonumber(f), tonumber(generation))
  if answer == 'CANCELLED' and is_stopped(run) then answer = 'TERMINATE' end
  if answer == 'OK' then kept[#kept + 1] = int(now + tonumber(lease)); kept[#kept + 1] = ref(run, tonumber(index), item) end
  answers[#answers + 1] = answer
end
if #kept > 0 then redis.call('ZADD', P .. 'leases', 'XX', unpack(kept)) end
keep_clock()
write_all()
tell({'OK', int(now), table.concat(answers, ',')})
return {'OK', int(now), answers}
