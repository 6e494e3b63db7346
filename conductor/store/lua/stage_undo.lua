-- stage_undo: one chunk of the plan of what is undone, in the order in which it is: places `index[:item]`, with `q` behind what is in doubt.
-- The first chunk begins anew, so that what a lost worker has left is gone.
--! args: caller number run_id index held_fence generation chunk count
--! use: partition clock token run step outcome_guard
--! result: OK | LOST | CANCELLED
if told then return told end
local run = run_of(run_id)
local rec = run and record(run, tonumber(index), NIL)
local answer = answer_for(run, rec, tonumber(held_fence), tonumber(generation))
if answer == 'OK' then
  if chunk == '0' then redis.call('UNLINK', run.key .. ':undo') end
  if count ~= '0' then redis.call('RPUSH', run.key .. ':undo', unpack(ARGV, 9, 8 + tonumber(count))) end
end
keep_clock()
write_all()
return tell({answer})
