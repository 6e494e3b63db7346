-- Claiming: fence and lease for what this worker does next. Entries that cannot be claimed are dropped, held or set aside here.
local no_code, halted = false, false
local coded, holding = {}, nil

local function knows(signature)
  if coded[signature] == nil then
    coded[signature] = redis.call('SISMEMBER', P .. 'code:' .. code, signature) == 1
    if not coded[signature] and redis.call('EXISTS', P .. 'code:' .. code) == 0 then no_code = true end
  end
  return coded[signature]
end
local function held(scope)
  if holding == nil then
    holding = {}
    local all = redis.call('HGETALL', P .. 'holds')
    for i = 1, #all, 2 do holding[all[i]] = true end
  end
  return holding[scope]
end

-- An `each` without items, or behind a failure, ends as a step. An item whose worker was lost is claimed alone.
local function claim_items(run, index, rec, d)
  local e = each_of(run, index)
  if e.total == 0 or has(rec.flags, 'u') then bump(e, 'listed', -1); claim_step(run, index, rec, d); return end
  local room = math.min(limit - #batch, d.parallel - e.active)
  if d.alone then room = math.min(room, 1) end
  local taken = {}
  if e.again > 0 and room > 0 then
    local popped = redis.call('ZPOPMIN', e.key .. ':again', room)
    for i = 1, #popped, 2 do
      local item = tonumber(popped[i])
      local old = record(run, index, item)
      local single = has(old.flags, '1')
      if halted or (single and #batch + #taken > 0) then
        redis.call('ZADD', e.key .. ':again', item, item)
      else
        bump(e, 'again', -1)
        taken[#taken + 1] = {item, old}
        halted = single
      end
    end
    if halted then room = #taken end
  end
  while #taken < room and e.cursor < e.total do
    taken[#taken + 1] = {e.cursor, new_record(NIL)}
    taken[#taken][2].ready_at = rec.ready_at
    bump(e, 'cursor', 1)
  end
  if #taken > 0 and rec.state == READY then rec.state = RUNNING; save(run, index, NIL, rec) end
  local first = nil
  for i, pair in ipairs(taken) do
    bump(e, 'active', 1)
    give(run, index, pair[1], pair[2], d)
    first = first or i
    local following = taken[i + 1]
    if not following or following[1] ~= pair[1] + 1 then
      emit(run, 'k', index, int(taken[first][2].fence), taken[first][1] .. '-' .. pair[1], tag)
      first = nil
    end
  end
  bump(e, 'listed', -1)
  add(run, 'r', -1)
  list_each(run, index)
end
