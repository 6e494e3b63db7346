-- What is left of a parked run: a line in `parked`, a member of `wake` if something will move it, and what was said to it meanwhile in its buffer.
-- The line is kept short, because many runs wait for long.
local STUB = {'n', 'g', 'h', 'st', 'wy', 'actor', 'e', 't', 'is', 'wi', 'past', 'bl', 'ln', 'w', 'k'}
local function stub_of(id)
  local line = redis.call('HGET', P .. 'parked', id)
  if not line then return nil end
  local stub, rest = {id = id, buffer = P .. 'run:' .. id .. ':buf'}, line
  for i = 1, #STUB - 1 do
    local cut = string.find(rest, ';', 1, true)
    stub[STUB[i]], rest = string.sub(rest, 1, cut - 1), string.sub(rest, cut + 1)
  end
  stub.k = rest
  return stub
end
local function save_stub(stub)
  local parts = {}
  for i, name in ipairs(STUB) do parts[i] = i < #STUB and (string.gsub(stub[name], ';', ',')) or stub[name] end
  redis.call('HSET', P .. 'parked', stub.id, table.concat(parts, ';'))
end
local function state_of(stub) return stub.st == '' and RUN_WAITING_SIGNAL or stub.st end
local function wake_soon(stub) redis.call('ZADD', P .. 'wake', 'LT', string.format('%.0f', now), stub.id) end

-- What is said to a parked run is kept in order and done when it is back; `taken` says which of its waiters has its answer by then.
local function keep_for(stub, taken, mark, payload, ...)
  local number = redis.call('HINCRBY', stub.buffer, 'n', 1)
  redis.call('HSET', stub.buffer, number, table.concat({...}, '\n'), number .. 'p', payload, mark[1], mark[2])
  if taken then redis.call('HSET', stub.buffer, '^' .. taken, '1') end
  wake_soon(stub)
end
local function is_open(stub, index)
  for _, open in ipairs(indexes_of(stub.wi)) do
    if open == index then return redis.call('HEXISTS', stub.buffer, '^' .. index) == 0 end
  end
  return false
end
local function is_past(stub, index)
  for _, past in ipairs(indexes_of(stub.past)) do if past == index then return true end end
  return redis.call('HEXISTS', stub.buffer, '^' .. index) == 1
end

-- A restorer expects nothing at all, or the stub of the event number that its snapshot has.
local function is_expected(id, expected)
  local stub = stub_of(id)
  if expected == NIL then return not stub end
  return stub and stub.n == expected
end
