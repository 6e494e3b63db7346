-- tick_job: moves a schedule to the tick after, by compare-and-set on the old one, and notes what became of the ticks in between.
-- After the named arguments: `count` lines `nominal;word;id;reason`, word is fired, missed or skipped. The last hundred are kept. Called
-- twice it gives the first answer and notes nothing twice.
--! args: name expected following count
--! use: partition
--! result: OK | MOVED | UNKNOWN
local JOB = P .. 'job:' .. name
local WORDS = {'fired', 'missed', 'skipped'}
local held = redis.call('HMGET', JOB, 'n', 'tk', 'ls', unpack(WORDS))
if not held[1] then return {'UNKNOWN'} end
local mine = held[1] == expected
local last, counts, lines, place = held[3] or NIL, {}, {}, {}
for i, word in ipairs(WORDS) do counts[word] = num(held[3 + i]) end
for line in string.gmatch(held[2] or NIL, '[^\n]+') do
  lines[#lines + 1] = line
  place[string.match(line, '^%d+')] = #lines
end

local function note(line)
  local nominal, word, id = string.match(line, '^(%d+);(%a+);([^;]*)')
  -- Somebody else moved the job on meanwhile (a quicker sweep, a changed declaration). What was started is told all the same, also where
  -- the other called that tick missed.
  if not mine and word ~= 'fired' then return end
  local at = place[nominal]
  local was = at and string.match(lines[at], '^%d+;(%a+)')
  if was == 'fired' then return end
  if was then counts[was] = counts[was] - 1 else at = #lines + 1 end
  lines[at] = line
  place[nominal] = at
  counts[word] = counts[word] + 1
  if word == 'fired' and num(nominal) >= num(string.match(last, '^%d+')) then last = nominal .. ';' .. id end
end
for i = 5, 4 + tonumber(count) do note(ARGV[i]) end

put(JOB, 'tk', table.concat(lines, '\n', math.max(1, #lines - 99)))
put(JOB, 'ls', last)
for word, n in pairs(counts) do put(JOB, word, int(n)) end
if mine then
  put(JOB, 'n', following)
  if redis.call('HEXISTS', P .. 'job:#paused', name) == 0 then redis.call('ZADD', P .. 'jobs', following, name) end
end
write_all()
return {(mine or held[1] == following) and 'OK' or 'MOVED'}
