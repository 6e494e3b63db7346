-- An `each` stands once in the ready index. `listed` says whether it does; items get records when they are claimed.
local EACH = {'total', 'cursor', 'done', 'failed', 'active', 'timed', 'listed', 'again', 'bad', 'anew'}
local function each_of(run, index)
  local e = run.eaches[index]
  if e then return e end
  e = {key = run.key .. ':e' .. int(index)}
  local values = redis.call('HMGET', e.key, unpack(EACH))
  for i, name in ipairs(EACH) do e[name] = num(values[i]) end
  e.bad, e.anew = values[9] or NIL, values[10] or NIL
  run.eaches[index] = e
  return e
end
local function bump(e, field, by)
  e[field] = e[field] + by
  mark(e, field)
end
-- Items between `from` and `to` have records of the life before a reopening, until it reaches them (see anew.lua): nothing may move them.
local function closed(run, index, item)
  if item == NIL then return false end
  local from, to = string.match(each_of(run, index).anew, '^(%d+)-(%d+)$')
  return from ~= nil and item >= tonumber(from) and item <= tonumber(to)
end
local function open_items(e) return e.again > 0 or e.cursor < e.total end
