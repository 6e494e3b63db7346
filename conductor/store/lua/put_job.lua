-- put_job: writes a schedule, or what has changed of it; ticks, counters and a pause are kept. Idempotent by its meaning.
-- A new cadence brings its own next tick, unless one is due: a tick that was promised is still owed, and its sweep moves on from there.
--! args: name definition cadence payload following
--! use: partition clock
--! result: CREATED | CHANGED | SAME
local JOB = P .. 'job:' .. name
local held = redis.call('HMGET', JOB, 'd', 'cd', 'i', 'n')
local new = not held[1]
if held[1] == definition and held[2] == cadence and held[3] == payload then return {'SAME'} end

local paused = redis.call('HEXISTS', P .. 'job:#paused', name) == 1
put(JOB, 'd', definition)
put(JOB, 'cd', cadence)
put(JOB, 'i', payload)
if new then put(JOB, 'c', int(now)) end
if held[2] ~= cadence then
  put(JOB, 'cs', int(now))
  local owed = not new and not paused and num(held[4]) <= now
  if not owed then
    put(JOB, 'n', following)
    if not paused then redis.call('ZADD', P .. 'jobs', following, name) end
  end
end
keep_clock()
write_all()
return {new and 'CREATED' or 'CHANGED'}
