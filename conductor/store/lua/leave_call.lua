-- leave_call: whoever waited for a call has stopped waiting. Its end is owed to the session, also if the first attempt brings it; if it has just
-- ended, it is owed at once. Told twice is told once: a message has a stable id.
--! args: run_id
--! use: partition clock run step
--! result: OK | ENDED | UNKNOWN
local run = run_of(run_id)
if not run then return {'UNKNOWN'} end
local rec = record(run, 0, NIL)
if ended(run) then
  if run.st ~= RUN_CANCELLED and (run.s ~= NIL or run.st == RUN_FAILED) then redis.call('ZADD', P .. 'outbox', int(now), run_id .. ';' .. int(run.g)) end
  return {'ENDED'}
end
set_flag(rec, 'n', true)
save(run, 0, NIL, rec)
write_all()
return {'OK'}
