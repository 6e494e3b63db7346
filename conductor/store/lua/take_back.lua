-- take_back: steps set aside for want of code stand ready again when a worker that has the code comes; it names its signatures.
-- What has waited longer than `patience` has its run paused as code_missing, which lifts itself here.
--! args: caller number patience limit count
--! use: partition clock token run save step each waiters ready unpause retake
--! result: OK now pokes runs…
if told then return told end
local mine = {}
for i = 1, tonumber(count) do mine[ARGV[5 + i]] = true end

local function despair(entry)
  local id, index = parse_ref(string.match(entry, '([^\n]*)$'))
  local run = run_of(id)
  if not run or ended(run) then return false end
  if run.st ~= RUN_RUNNING or stopping(run) or out_of_play(run, descriptor(run, index)) then return true end
  emit(run, 'p', 'code_missing')
  set(run, 'st', RUN_PAUSED)
  set(run, 'wy', 'code_missing')
  moved[#moved + 1] = run.id .. ' code_missing'
  return true
end

local found = redis.call('ZRANGE', ASIDE, 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  local signature, list = found[i], P .. 'aside:' .. found[i]
  if mine[signature] then
    retake(signature, tonumber(limit))
  elseif now - tonumber(found[i + 1]) > num(patience) then
    -- The list is turned round, so that each look goes on where the last one ended; what belongs to no live run is dropped.
    for _ = 1, math.min(tonumber(limit), redis.call('LLEN', list)) do
      local entry = redis.call('LPOP', list)
      if despair(entry) then redis.call('RPUSH', list, entry) end
    end
    if redis.call('EXISTS', list) == 0 then redis.call('ZREM', ASIDE, signature) end
  end
end
save_ready()
save_runs()
keep_clock()
write_all()
return tell({'OK', int(now), table.concat(pokes, ','), unpack(moved)})
