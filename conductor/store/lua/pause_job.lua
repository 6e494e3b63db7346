-- pause_job: takes a schedule out of the index of ticks (`pause` 1), or puts it back with a new next tick (`pause` 0). Idempotent by its meaning.
-- Ticks that pass meanwhile are not missed: nobody wanted them.
--! args: name pause following reason
--! use: partition clock
--! result: OK | ALREADY | UNKNOWN
local JOB, PAUSED = P .. 'job:' .. name, P .. 'job:#paused'
if redis.call('EXISTS', JOB) == 0 then return {'UNKNOWN'} end
local paused = redis.call('HEXISTS', PAUSED, name) == 1
if paused == (pause == '1') then return {'ALREADY'} end
if pause == '1' then
  redis.call('HSET', PAUSED, name, int(now) .. ';' .. reason)
  redis.call('ZREM', P .. 'jobs', name)
else
  redis.call('HDEL', PAUSED, name)
  put(JOB, 'n', following)
  redis.call('ZADD', P .. 'jobs', following, name)
end
keep_clock()
write_all()
return {'OK'}
