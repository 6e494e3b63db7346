-- read_parts: what one moment must hold of a run, for a copy of it: the hash, the parts that are named, what its log has told since `after`, and
-- the times of members of the due index. What is left out was read before, and the log tells whether it has changed since. Only reads.
-- After the named arguments: `tails` pairs (tail, kind), then the members.
--! args: run_id after tails
--! use: partition
--! result: OK | UNKNOWN, then entries fields parts times
local RUN = P .. 'run:' .. run_id
if redis.call('EXISTS', RUN) == 0 then return {'UNKNOWN', {}, {}, {}, {}} end
local READ = {
  hash = function(key) return redis.call('HGETALL', key) end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
}
local at, parts, times = 4, {}, {}
for i = 1, tonumber(tails) do
  parts[i] = READ[ARGV[at + 1]](RUN .. ':' .. ARGV[at])
  at = at + 2
end
for i = at, #ARGV do times[#times + 1] = redis.call('ZSCORE', P .. 'due', ARGV[i]) or '' end
return {'OK', redis.call('LRANGE', RUN .. ':log', after, -1), redis.call('HGETALL', RUN), parts, times}
