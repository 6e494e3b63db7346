-- seen_job: a process declares this schedule. Said now and then by each that does; a schedule that nobody names any more is an orphan.
--! args: name
--! use: partition clock
--! result: OK | UNKNOWN
local JOB = P .. 'job:' .. name
if redis.call('EXISTS', JOB) == 0 then return {'UNKNOWN'} end
redis.call('HSET', JOB, 'sn', int(now))
return {'OK'}
