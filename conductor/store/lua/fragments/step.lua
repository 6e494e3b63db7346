-- Step and item records: `state;fence;attempt;losses;ready_at;wait;ran;flags`, pending ones `P;left;flags`. Made lazily, packed many to a key.
local function shard(run, index)
  if index < 32 then return run.key end
  return run.key .. ':s' .. int(math.floor(index / 32))
end
local function item_key(run, index, item)
  local number = math.floor(item / 64)
  local name = index * 32768 + number
  local key = run.item_keys[name]
  if not key then key = run.key .. ':e' .. int(index) .. ':' .. int(number); run.item_keys[name] = key end
  return key
end

local function parse(text)
  if string.sub(text, 1, 2) == 'P;' then
    local left, flags = string.match(text, '^P;(%d+);(.*)$')
    return {state = PENDING, left = tonumber(left), flags = flags}
  end
  local state, f, attempt, losses, ready_at, wait, ran, flags = string.match(text, '^(%a);(%d*);(%d*);(%d*);(%d*);(%d*);(%d*);(.*)$')
  return {state = state, fence = num(f), attempt = num(attempt), losses = num(losses), ready_at = num(ready_at), wait = wait, ran = ran, flags = flags}
end
local function format(rec)
  if rec.state == PENDING then return 'P;' .. int(rec.left) .. ';' .. rec.flags end
  return table.concat({rec.state, int(rec.fence), int(rec.attempt), int(rec.losses), int(rec.ready_at), rec.wait, rec.ran, rec.flags}, ';')
end
local function new_record(flags)
  return {state = READY, fence = 0, attempt = 0, losses = 0, ready_at = now, wait = '0', ran = '0', flags = flags}
end

local descriptors = {}
local function descriptor(run, index)
  local known = descriptors[run.h]
  if not known then known = {}; descriptors[run.h] = known end
  local d = known[index]
  if d then return d end
  local text = redis.call('HGET', P .. 'graph:' .. run.h, int(index))
  local kind, queue, priority, alone, lease, timeout, delay, parallel, signature, parents, needs, source, input, budget, capability, awaited =
    string.match(text, '^(.-);(.-);(.-);(.-);(.-);(.-);(.-);(.-);(.-);(.-);(.-);(.-);(.-);(%d*)@?([^;]*);?(.*)$')
  d = {kind = kind, queue = queue, priority = priority, alone = alone == '1', lease = num(lease), timeout = num(timeout), delay = num(delay),
    parallel = num(parallel), signature = signature, parents = num(parents), needs = needs, source = source, input = input == '1',
    budget = num(budget), capability = capability, awaits = awaited}
  known[index] = d
  return d
end
-- The record of what undoes an item stands beside that item's own.
local function place(run, index, item)
  if item == NIL then return shard(run, index), int(index) end
  local d = descriptor(run, index)
  if d.kind == 'u' then return item_key(run, tonumber(d.source), item), int(item) .. 'u' end
  return item_key(run, index, item), int(item)
end
local function name_of(index, item) return item == NIL and int(index) or int(index) .. ':' .. int(item) end
-- Where a call keeps a record that it has met: a number, because a text would be made for each look.
local function slot_of(index, item) return index * 2097152 + (item == NIL and 0 or item + 1) end
local function record(run, index, item)
  local name = slot_of(index, item)
  local rec = run.records[name]
  if rec == nil then
    local key, field = place(run, index, item)
    local text = redis.call('HGET', key, field)
    rec = text and parse(text) or false
    run.records[name] = rec
  end
  return rec
end
local function save(run, index, item, rec)
  run.records[slot_of(index, item)] = rec
  local key, field = place(run, index, item)
  put(key, field, format(rec))
end
local function set_flag(rec, flag, on)
  if has(rec.flags, flag) == on then return end
  if on then rec.flags = flag .. rec.flags else rec.flags = string.gsub(rec.flags, flag, '', 1) end
end
local function ref(run, index, item)
  return run.id .. ':' .. name_of(index, item)
end
local function parse_ref(text)
  local id, index, item = string.match(text, '^([^:]+):(%d+):?(%d*)$')
  return id, tonumber(index), item ~= '' and tonumber(item) or NIL
end
-- `queue!limit` for what stands under a limit; nobody claims from there but with a permit.
local function queue_of(run, d)
  if string.sub(d.queue, 1, 1) == '!' then return run.q .. d.queue end
  return d.queue ~= NIL and d.queue or run.q
end
local function score_of(run, d) return (d.priority ~= NIL and num(d.priority) or run.p) * 1e13 + now end
