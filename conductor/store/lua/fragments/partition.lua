-- The partition this call is about: every key is built from the tag of KEYS[1], so all of them share one slot.
local HEAD = KEYS[1]
local P = string.sub(HEAD, 1, -5)
local NIL = ''

-- Numbers travel as decimal integers: Lua's own formatting would turn 1763456789123 into 1.7634567891e+12. It is slow as well, like any
-- formatting of a fraction, so a number becomes text in this way only, and once.
local texts = {}
local function int(n)
  local text = texts[n]
  if not text then text = string.format('%d', n); texts[n] = text end
  return text
end
local function num(s) return tonumber(s) or 0 end
-- Letters stand before `w<ms>`, whose digits are no flags.
local function has(flags, f) return flags ~= NIL and string.find(string.match(flags, '^[^w]*'), f, 1, true) ~= nil end

local function list_of(text)
  local found = {}
  for part in string.gmatch(text, '[^,]+') do found[#found + 1] = part end
  return found
end

local function indexes_of(text)
  local found = {}
  for part in string.gmatch(text, '%d+') do found[#found + 1] = tonumber(part) end
  return found
end

-- One HSET per key, however many fields a script changes.
local writes, write_order = {}, {}
local function put(key, field, value)
  local w = writes[key]
  if not w then w = {}; writes[key] = w; write_order[#write_order + 1] = key end
  w[field] = value
end
-- A field that changes often within one call is only marked, and becomes text once, when all is written.
local marked = {}
local function mark(owner, field)
  if not owner.marks then owner.marks = {}; marked[#marked + 1] = owner end
  owner.marks[field] = true
end
local function write_all()
  for _, owner in ipairs(marked) do
    for field in pairs(owner.marks) do
      local value = owner[field]
      put(owner.key, field, type(value) == 'number' and int(value) or value)
    end
    owner.marks = nil
  end
  marked = {}
  for _, key in ipairs(write_order) do
    local args, n = {}, 0
    for field, value in pairs(writes[key]) do
      args[n + 1] = field; args[n + 2] = value; n = n + 2
      if n >= 2000 then redis.call('HSET', key, unpack(args)); args, n = {}, 0 end
    end
    if n > 0 then redis.call('HSET', key, unpack(args)) end
  end
end
