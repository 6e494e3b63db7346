-- set_limit: in the home of a limit: its rate (so many in so many ms) and concurrency from now on. `hand` 1: a person's word, which stands until it
-- is taken back (`hand` 0 with `forget`); 0: what a worker's code says, which counts only where no person has spoken.
--! args: caller number name rate per concurrency hand forget gap
--! use: partition clock token run save step each waiters ready calm limit
--! result: OK | BY_HAND, then pokes
if told then return told end
if hand == '0' and forget == '0' and redis.call('HGET', LIMIT, 'hand') == '1' then return tell({'BY_HAND', ''}) end
if forget == '1' then redis.call('HDEL', LIMIT, 'hand')
else
  redis.call('HSET', LIMIT, 'rate', rate, 'per', per, 'concurrency', concurrency, 'hand', hand)
  redis.call('SADD', P .. 'limits', name)
end
reclaim()
local terms = limit_terms()
for _, queue in ipairs(redis.call('SMEMBERS', LIMIT .. ':queues')) do look_again(queue, terms, room(terms)) end
keep_clock()
write_all()
return tell({'OK', table.concat(pokes, ',')})
