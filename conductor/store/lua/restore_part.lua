-- restore_part: a piece of one key of a run that comes back, while the run itself is not there yet (`expected` empty) or is a stub at that event
-- number. Nobody looks at these keys before `restore_run`; two who restore one run write the same, in any order. The pieces follow.
--! args: run_id expected tail kind offset
--! use: partition stub
-- Kind `none` takes away what an earlier restorer left of another snapshot: the keys that follow.
--! result: OK | CHANGED
local RUN = P .. 'run:' .. run_id
if redis.call('EXISTS', RUN) == 1 or not is_expected(run_id, expected) then return {'CHANGED'} end
local key, at = RUN .. ':' .. tail, tonumber(offset)
if kind == 'none' then
  for i = 6, #ARGV do redis.call('UNLINK', RUN .. ':' .. ARGV[i]) end
elseif kind ~= 'list' then
  redis.call(({hash = 'HSET', set = 'SADD', zset = 'ZADD'})[kind], key, unpack(ARGV, 6))
elseif redis.call('LLEN', key) == at then redis.call('RPUSH', key, unpack(ARGV, 6)) end
return {'OK'}
