-- stage: one chunk of a long list, written before the commit that names it. Chunks of a lost fence are swept.
--! args: run_id index held_fence generation chunk text
--! use: partition clock run step outcome_guard
--! result: OK | LOST | CANCELLED
local run = run_of(run_id)
local rec = run and record(run, tonumber(index), NIL)
local answer = answer_for(run, rec, tonumber(held_fence), tonumber(generation))
if answer == 'OK' then
  local key = run.key .. ':v' .. index .. ':' .. held_fence
  redis.call('HSET', key, chunk, text)
  redis.call('ZADD', P .. 'staged', 'NX', int(now), run.id .. ':' .. index .. ':' .. held_fence)
end
return {answer}
