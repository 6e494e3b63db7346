-- paused → running: what was met while the run was paused stands ready again, at most a thousand entries; the due sweep does the rest.
-- Gives how many.
local function unpause(run, actor)
  local held = run.key .. ':held'
  local entries = redis.call('LRANGE', held, 0, 999)
  if run.st == RUN_PAUSED then
    emit(run, 'r', actor)
    set(run, 'st', RUN_RUNNING)
    set(run, 'wy', NIL)
  end
  for _, index in ipairs(entries) do
    local rec = record(run, tonumber(index), NIL)
    if rec and (rec.state == READY or rec.state == RUNNING) then
      add(run, 'r', -1)
      stand(run, tonumber(index), descriptor(run, tonumber(index)))
    end
  end
  if #entries > 0 then redis.call('LTRIM', held, #entries, -1) end
  if #entries == 1000 then redis.call('ZADD', P .. 'due', int(now), 'held:' .. run.id) end
  return #entries
end
