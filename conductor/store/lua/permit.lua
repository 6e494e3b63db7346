-- permit: in the home of a limit. Takes permits back, queues what wants one, and gives out up to `most`; keys take turns. A permit is leased and
-- names what it was given for: if its holder is never heard of again, that stands at the head of its key again, and the permit is free.
-- After a `gap` in which nobody swept, nothing is taken for lost for as long as no lease of a step is.
-- After the named arguments: `returned` pairs (permit, `done` or `unused`), `backs` pairs (key, ms), `wants` triples (member, score, key).
--! args: caller number name queue most rate per concurrency lease gap returned backs wants
--! use: partition clock token run save step each waiters ready calm limit
--! result: OK now pokes permits… | STALE
if told then return told end
if rate ~= NIL or concurrency ~= NIL then
  for field, value in pairs({rate = rate, per = per, concurrency = concurrency}) do redis.call('HSETNX', LIMIT, field, value) end
  redis.call('SADD', P .. 'limits', name)
end
local terms = limit_terms()
asked_by_worker = true
reclaim()
local at = 14
for _ = 1, tonumber(returned) do give_up(ARGV[at], ARGV[at + 1] == 'unused'); at = at + 2 end
for _ = 1, tonumber(backs) do
  redis.call('ZADD', LIMIT .. ':back', 'GT', int(now + num(ARGV[at + 1])), ARGV[at])
  at = at + 2
end
for _ = 1, tonumber(wants) do enqueue(queue, ARGV[at], ARGV[at + 1], ARGV[at + 2]); at = at + 3 end
come_forward(queue)

local given, open = {}, room(terms)
while #given < tonumber(most) and open > 0 do
  local key = whose_turn(queue)
  if not key then break end
  local permit, member = hand_out(queue, key, terms, num(lease))
  given[#given + 1] = permit .. ';' .. member .. ';' .. key
  open = open - 1
end
for _, other in ipairs(redis.call('SMEMBERS', LIMIT .. ':queues')) do look_again(other, terms, open) end
tidy()
keep_clock()
write_all()
return tell({'OK', int(now), table.concat(pokes, ','), unpack(given)})
