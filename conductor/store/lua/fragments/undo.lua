-- Undoing: a worker plans it from the log, then one undo after the other stands, by the ordinary road. The generation is raised, so that
-- nothing forward is claimed or committed; what still stands in indexes is no longer counted, and dropped by whoever meets it.
local function undo_of(run)
  local asked, index = string.match(run.hk, '^([uU])(%d+)')
  return tonumber(index), asked == 'U'
end
-- What is undone while it is queued (a retry) goes on at once, and without a place: it has effects to take back, and nobody is admitted for it.
local function leave_queue(run)
  if run.st ~= RUN_QUEUED then return end
  redis.call('ZREM', lane_key(run.ln, 'queue'), run.id)
  redis.call('ZREM', P .. 'due', 'lane:' .. run.id)
  redis.call('HDEL', run.key, 'ro')
  progress(run)
end

local function begin_undo(run, outcome, reason, actor)
  set(run, 'g', run.g + 1)
  set(run, 'st', RUN_COMPENSATING)
  set(run, 'wy', reason)
  set(run, 'ph', 'C')
  set(run, 'oc', outcome)
  set(run, 'ow', reason)
  for _, field in ipairs({'r', 'd', 'a'}) do set(run, field, 0) end
  forget_waiters(run)
  put(run.key, 'un', '0')
  redis.call('HDEL', run.key, 'ro')
  redis.call('UNLINK', run.key .. ':held')
  if run.op ~= NIL then release_ops(run) end
  emit(run, 'Y', run.g, outcome, reason, actor)
  unblock(run, undo_of(run), NIL)
end

-- An undo has ended, or the plan of them: the next one stands, what was committed last first. One that failed for good does not keep the
-- others; but if nobody could make the plan, there is nothing to go by.
local function undo_ended(run, index, item, rec, state, d)
  rec.state = state
  save(run, index, item, rec)
  if state == FAILED then set(run, 'oc', RUN_FAILED); set(run, 'ow', 'compensation_failed') end
  if state == FAILED and d.source == NIL then redis.call('UNLINK', run.key .. ':undo'); return end
  local following = redis.call('LPOP', run.key .. ':undo')
  if not following then return end
  local at, of, doubt = string.match(following, '^(%d+):?(%d*)(q?)$')
  at, of = tonumber(at), of ~= NIL and tonumber(of) or NIL
  emit(run, 'Q', at, of)
  local fresh_one = new_record(doubt)
  save(run, at, of, fresh_one)
  stand(run, at, descriptor(run, at), of)
end

-- The run is being undone, or one above it is, and what its attempts do is in doubt as long as they may go on. The holder of this one says that
-- it has ended: whoever waits for its lease need not.
local function let_go(run, index, item, rec, f)
  if not rec or rec.fence ~= f or rec.state ~= RUNNING then return end
  unleased[#unleased + 1] = ref(run, index, item)
  for _ = 0, DEPTH + 1 do
    if run.ph == 'C' then redis.call('ZADD', P .. 'due', 'XX', int(now), 'retry:' .. ref(run, undo_of(run), NIL)) end
    if run.up == NIL then return end
    run = above(run)
    if not run then return end
  end
end
