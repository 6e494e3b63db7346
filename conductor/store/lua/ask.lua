-- ask: what stands ready under a limit and has not asked for a permit yet: `member;score;key`, up to `most`. First the `enrolled` pairs (member,
-- score) that have asked by now are put aside until their turn comes; one that was claimed or stands anew meanwhile has another score.
-- The queue is `queue!limit`. Before it looks it answers the poke, so that what becomes ready later pokes again.
--! args: caller number queue most enrolled
--! use: partition clock token run save step each waiters ready
--! result: OK now lines… | STALE
if told then return told end
answer_poke(queue, false)
local READY = P .. 'ready:' .. queue
for i = 0, tonumber(enrolled) - 1 do
  local member, score = ARGV[6 + 2 * i], ARGV[7 + 2 * i]
  if tonumber(redis.call('ZSCORE', READY, member) or NIL) == tonumber(score) then
    redis.call('ZREM', READY, member)
    redis.call('ZADD', P .. 'limited:' .. queue, int(now), member)
  end
end
local lines, name = {}, string.match(queue, '!(.*)$')
local found = redis.call('ZRANGE', READY, 0, tonumber(most) - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local id = parse_ref(found[i])
  local run = run_of(id)
  local key = NIL
  for one, value in string.gmatch(run and redis.call('HGET', run.key, 'lm') or NIL, '([^=\n]+)=([^\n]*)') do
    if one == name then key = value end
  end
  if run and not ended(run) then lines[#lines + 1] = found[i] .. ';' .. int(tonumber(found[i + 1])) .. ';' .. key
  else redis.call('ZREM', READY, found[i]) end
end
keep_clock()
write_all()
return tell({'OK', int(now), unpack(lines)})
