-- The runs a script meets: each is read once, changed in memory, written once at the end with its events and one notice.
local FIELDS = {'st', 'g', 'l', 'r', 'a', 'd', 'f', 'ph', 'h', 'q', 'p', 't', 'w', 'hk', 'oc', 's', 'k', 'pg', 'ot', 'tm', 'wy', 'ow', 'qr', 'up', 'op',
  'o', 'oa', 'ch', 'wi', 'is', 'it', 'ps', 'ln', 'rs'}
local COUNTERS = {g = true, l = true, r = true, a = true, d = true, f = true, p = true, t = true, pg = true, o = true, oa = true, ch = true}
local runs, met = {}, {}

local function meet(id, key, state)
  local run = {id = id, key = key, events = {}, records = {}, eaches = {}, item_keys = {}, progressed = false, was = state}
  runs[id] = run
  met[#met + 1] = run
  return run
end
local function run_of(id)
  local run = runs[id]
  if run ~= nil then return run end
  local key = P .. 'run:' .. id
  local values = redis.call('HMGET', key, unpack(FIELDS))
  if not values[1] then runs[id] = false; return false end
  run = meet(id, key, values[1])
  for i, name in ipairs(FIELDS) do
    if COUNTERS[name] then run[name] = num(values[i]) else run[name] = values[i] or NIL end
  end
  run.ot_was, run.is_was = run.ot, run.is
  return run
end
-- A run that this call makes: nothing of it is stored yet.
local function new_run(id, fields)
  local run = meet(id, P .. 'run:' .. id, fields.st)
  for _, name in ipairs(FIELDS) do
    if COUNTERS[name] then run[name] = num(fields[name]) else run[name] = fields[name] or NIL end
  end
  return run
end

local function set(run, field, value)
  run[field] = value
  mark(run, field)
end
local function add(run, field, by) set(run, field, run[field] + by) end
local function ended(run) return TERMINAL[run.st] end
local function is_op(run) return run.qr ~= NIL end

-- What a run has called, an op or a child run, is bound to it: nothing of it is claimed or taken once the run has ended or lives in another
-- generation, and so for each above. A failing run still lets its running attempts end, and their ops with them, but no child goes on.
local DEPTH = 8
local function above(run)
  local id, generation = string.match(run.up, '^(.-);(%d+)$')
  return run_of(id), tonumber(generation)
end
local function unbound(run)
  for _ = 0, DEPTH + 1 do  -- what a child at the greatest depth calls is an op
    if run.up == NIL then return false end
    local parent, generation = above(run)
    if not parent or ended(parent) or parent.g ~= generation or (run.ps ~= NIL and parent.ph == 'F') then return true end
    run = parent
  end
  return true
end

local function emit(run, code, ...)
  local parts = {code, int(now), ...}
  for i = 3, #parts do if type(parts[i]) == 'number' then parts[i] = int(parts[i]) end end
  while parts[#parts] == NIL do parts[#parts] = nil end
  run.events[#run.events + 1] = table.concat(parts, ';')
end

local function key_of(run) return P .. 'key:' .. run.w .. (run.ln ~= NIL and '@' .. run.ln or NIL) .. ':' .. run.k end

local function progress(run) run.progressed = true end

-- Steps that follow each other at once are told by the first of them in a window: whoever is woken looks, and looks again when it is over.
local function worth_a_notice(run)
  return run.st ~= run.was or is_op(run) or math.floor(run.pg / NOTICE_MS) ~= math.floor(now / NOTICE_MS)
end
