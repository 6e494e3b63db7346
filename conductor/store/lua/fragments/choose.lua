-- Choosing: what became ready in this call first, unless something more urgent stands in the index; then the index itself.
local function refuse(run, index, rec, d, entry)
  if unbound(run) then end_unbound(run) end
  if ended(run) or not rec or (rec.state ~= READY and d.kind ~= 'e') then return true end
  if d.kind == 'e' and (rec.state ~= READY and rec.state ~= RUNNING) then return true end
  if d.kind == 'e' and each_of(run, index).listed < 1 then return true end
  if stopping(run) or out_of_play(run, d) then return true end
  if run.st == RUN_PAUSED then
    redis.call('RPUSH', run.key .. ':held', index)
    return true
  end
  local kept = held('workflow:' .. run.w) and run.w or (d.capability ~= NIL and held('capability:' .. d.capability) and 'capability:' .. d.capability)
  if kept then
    redis.call('ZADD', P .. 'held:' .. kept, int(entry.score), entry.queue .. '\n' .. entry.member)
    return true
  end
  return false
end

local function set_aside(run, index, d, entry)
  redis.call('ZADD', P .. 'aside', 'NX', int(now), d.signature)
  redis.call('RPUSH', P .. 'aside:' .. d.signature, entry.queue .. '\n' .. int(entry.score) .. '\n' .. entry.member)
  emit(run, 'm', index, d.signature)
end

-- True: the entry is done with. False: it must stay in the index, and choosing ends.
local function take(entry)
  local id, index, item = parse_ref(entry.member)
  local run = run_of(id)
  if not run then return true end
  local rec, d = record(run, index, item), descriptor(run, index)
  if refuse(run, index, rec, d, entry) then return true end
  local single = d.alone or has(rec.flags, '1')
  if single and #batch > 0 then halted = true; return false end
  if not knows(d.signature) then
    if no_code then halted = true; return false end
    set_aside(run, index, d, entry)
    return true
  end
  if d.kind == 'e' then claim_items(run, index, rec, d) else claim_step(run, index, rec, d, item) end
  if single then halted = true end
  return true
end

local function choose(queue)
  if held('all') or held('queue:' .. queue) then return end
  local mine, rest = {}, {}
  for _, entry in ipairs(fresh) do
    if entry.queue == queue then mine[#mine + 1] = entry else rest[#rest + 1] = entry end
  end
  fresh = rest
  if #mine > 0 then
    table.sort(mine, function(a, b) return a.score < b.score end)
    local first = redis.call('ZRANGE', P .. 'ready:' .. queue, 0, 0, 'WITHSCORES')
    local urgent = first[2] and math.floor(tonumber(first[2]) / 1e13) or 10
    for _, entry in ipairs(mine) do
      local later = #batch >= limit or halted or math.floor(entry.score / 1e13) > urgent
      if later or not take(entry) then fresh[#fresh + 1] = entry end
    end
  end
  local looks = 0
  while #batch < limit and not halted and looks < 8 do
    local popped = redis.call('ZPOPMIN', P .. 'ready:' .. queue, limit - #batch)
    if #popped == 0 then break end
    looks = looks + 1
    for i = 1, #popped, 2 do
      local entry = {queue = queue, member = popped[i], score = tonumber(popped[i + 1])}
      if halted or #batch >= limit or not take(entry) then fresh[#fresh + 1] = entry end
    end
  end
end
