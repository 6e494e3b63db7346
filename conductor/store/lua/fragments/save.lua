-- Saving runs: idleness is settled, then record, events, indexes and one notice are written.

-- While a run is failing (F) or stopping to pause (U) nothing new stands: its records alone remember what was ready.
local function stopping(run) return run.ph == 'F' or run.ph == 'U' end

-- Idle: nothing is ready, leased, in retry or left to a child, and something is waited for. It is settled where runs are saved, in every
-- script that moves one, so that state, idle_since and the indexes of orphans cannot differ from what the counters say. An orphan waits for
-- agents only; `longest_wait` (in `waiters`, which every script has that can leave a run idle) says for how long.
local longest_wait = nil
local function is_idle(run)
  local going = run.st == RUN_RUNNING or run.st == RUN_WAITING_SIGNAL
  return going and run.ph == NIL and run.o > 0 and run.r == 0 and run.a == 0 and run.d == 0 and run.ch == 0
end
local function become_idle(run)
  emit(run, 'i', #run.wi > 200 and string.match(string.sub(run.wi, 1, 200), '^(.*),') or run.wi)
  set(run, 'st', RUN_WAITING_SIGNAL)
  set(run, 'is', int(now))
  redis.call('ZREM', P .. 'progress', run.id)
  if run.oa < run.o then return end
  local moved_at = run.progressed and now or run.pg
  redis.call('ZADD', P .. 'orphans', int(moved_at), run.id)
  redis.call('ZADD', P .. 'orphans:due', int(moved_at + longest_wait(run)), run.id)
end
local function leave_idle(run)
  set(run, 'is', NIL)
  redis.call('ZREM', P .. 'orphans', run.id)
  redis.call('ZREM', P .. 'orphans:due', run.id)
  if ended(run) then return end
  redis.call('ZADD', P .. 'progress', int(run.pg), run.id)
  if run.st ~= RUN_WAITING_SIGNAL then return end
  emit(run, 'j')
  set(run, 'st', RUN_RUNNING)
end
local function settle_idleness(run)
  if is_op(run) then return end
  local idle = is_idle(run)
  if idle and run.is == NIL then become_idle(run) elseif not idle and run.is ~= NIL then leave_idle(run) end
end

local function save_runs()
  for _, run in ipairs(met) do
    settle_idleness(run)
    if #run.events > 0 then
      if stepped_back then table.insert(run.events, 1, 'C;' .. int(now)) end
      local n = 0
      for at = 1, #run.events, 1000 do
        n = redis.call('RPUSH', run.key .. ':log', unpack(run.events, at, math.min(at + 999, #run.events)))
      end
      if worth_a_notice(run) then
        run.notice = redis.call('XADD', P .. 'notices', 'MAXLEN', '~', '500', '*', 'r', run.id, 'n', n, 's', run.st)
      end
    end
    local stands = not ended(run) and run.st ~= RUN_QUEUED  -- queued in a lane: it has no place among the active runs
    -- The time of its last progress and its line are as old as a window at most; a new orchestrator is told at once.
    local changed = worth_a_notice(run) or run.ot ~= run.ot_was or run.is ~= run.is_was
    if stands and changed and (run.progressed or #run.events > 0) then
      if run.progressed then
        set(run, 'pg', now)
        if not is_op(run) and run.is == NIL then redis.call('ZADD', P .. 'progress', int(now), run.id) end
      end
      local line = table.concat({run.st, run.w, int(run.pg), run.is, run.ot, run.s}, ';')
      redis.call('HSET', P .. (is_op(run) and 'ops:open' or 'active'), run.id, line)
    end
    if is_op(run) and #run.events > 0 then
      local queued = P .. 'queued:' .. run.qr
      if ended(run) or run.a > 0 then redis.call('ZREM', queued, run.id)
      else redis.call('ZADD', queued, int(run.next_at or now), run.id) end
    end
  end
end
