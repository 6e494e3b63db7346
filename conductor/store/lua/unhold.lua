-- unhold: the scope is claimed again; what was met meanwhile stands ready again, at most a thousand entries a call (then MORE).
--! args: caller number scope
--! use: partition clock token run save step each waiters ready release
--! result: OK | MORE | NOT_HELD, then pokes
if told then return told end
local was = redis.call('HDEL', P .. 'holds', scope)
local released = release(scope)
if was == 0 and released == 0 then return tell({'NOT_HELD', ''}) end
for _, queue in ipairs(redis.call('HKEYS', P .. 'pokes')) do
  if redis.call('ZCARD', P .. 'ready:' .. queue) > 0 then poke(queue) end
end
save_ready()
keep_clock()
write_all()
return tell({released == 1000 and 'MORE' or 'OK', table.concat(pokes, ',')})
