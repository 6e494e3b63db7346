-- What is left of a parked run: a line in `parked`, a member of `wake` if something will move it, and what was said to it meanwhile in its buffer.
-- The line is kept short, because many runs wait for long.
local STUB = {'n', 'g', 'h', 'st', 'wy', 'actor', 'e', 't', 'is', 'wi', 'past', 'ids', 'kept', 'bl', 'ln', 'w', 'k'}
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
-- A parked orphan stands in its index until it is over, paused, or has got its answer; when it is back its record decides again.
local function leave_orphans(id)
  redis.call('ZREM', P .. 'orphans', id)
  redis.call('ZREM', P .. 'orphans:due', id)
end
local function save_stub(stub)
  if stub.st ~= '' then leave_orphans(stub.id) end
  local parts = {}
  for i, name in ipairs(STUB) do parts[i] = i < #STUB and (string.gsub(stub[name], ';', ',')) or stub[name] end
  redis.call('HSET', P .. 'parked', stub.id, table.concat(parts, ';'))
end
local function state_of(stub) return stub.st == '' and RUN_WAITING_SIGNAL or stub.st end
local function wake_soon(stub) redis.call('ZADD', P .. 'wake', 'LT', string.format('%.0f', now), stub.id) end

-- The ids of signals that had come before the run was parked, short: a repeated one must not be taken for a new one, nor its waiter for satisfied.
local function short_id(id) return string.sub(redis.sha1hex(id), 1, 16) end

-- A restorer expects nothing at all, or the stub of the event number that its snapshot has.
local function is_expected(id, expected)
  local stub = stub_of(id)
  if expected == NIL then return not stub end
  return stub and stub.n == expected
end
