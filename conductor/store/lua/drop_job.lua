-- drop_job: forgets a schedule with its ticks. What it started lives on. Idempotent by its meaning.
--! args: name
--! use: partition
--! result: OK | UNKNOWN
redis.call('ZREM', P .. 'jobs', name)
redis.call('HDEL', P .. 'job:#paused', name)
return {redis.call('UNLINK', P .. 'job:' .. name) == 1 and 'OK' or 'UNKNOWN'}
