-- Recording outcomes: what follows from the end of a step or an item, in the script that records it.

-- A join is decremented only here, by a predecessor's first commit; flags remember how the predecessors ended.
local function follow(run, after, flag)
  for _, index in ipairs(after) do
    local rec = record(run, index, NIL) or {state = PENDING, left = descriptor(run, index).parents, flags = NIL}
    if rec.state == PENDING then
      rec.left = rec.left - 1
      set_flag(rec, flag, true)
      if rec.left > 0 then save(run, index, NIL, rec)
      else
        local flags = has(rec.flags, 'u') and 'u' or (not has(rec.flags, 'c') and 's' or NIL)
        if has(rec.flags, 'd') then flags = flags .. 'd' end
        unblock(run, index, flags)
      end
    end
  end
end

-- Why a run will pause is known when a step fails, not when the last one that still runs has ended: it is kept in `ow` until then. The first
-- reason stays, but for an effect in doubt, which a person has to judge before anything else helps.
local function stop_to_pause(run)
  local told = run.why == 'effect_in_doubt' or run.why == 'payload_mismatch'
  if run.ph == NIL then set(run, 'ow', told and run.why or 'step_failed')
  elseif run.why == 'effect_in_doubt' then set(run, 'ow', run.why) end
  set(run, 'ph', 'U')
end
local function fail_run(run, policy)
  add(run, 'f', 1)
  if policy == 'compensate' and undo_of(run) then set(run, 'oc', RUN_COMPENSATING) end
  if policy == 'fail' or policy == 'compensate' then set(run, 'ph', 'F')
  elseif policy == 'pause' and (run.ph == NIL or run.ph == 'U') then stop_to_pause(run) end
end

local function step_ended(run, index, rec, state, after, policy, d)
  rec.state = state
  save(run, index, NIL, rec)
  if d.kind == 'h' then
    if state == FAILED then set(run, 'oc', RUN_FAILED) end
    if state == FAILED and run.ow ~= 'compensation_failed' then set(run, 'ow', 'last_step_failed') end
    return
  end
  add(run, 'l', -1)
  if state == FAILED then
    fail_run(run, policy)
    if policy == 'continue' then follow(run, after, 'u') end
  else
    -- What was skipped because of a failure upstream passes that on to all that is downstream.
    follow(run, after, state == COMPLETED and 'c' or (has(rec.flags, 'u') and 'u' or 'z'))
  end
end

local function total_for_eaches(run, index, after, total)
  for _, following in ipairs(after) do
    if descriptor(run, following).source == int(index) then
      local e = each_of(run, following)
      bump(e, 'total', num(total) - e.total)
    end
  end
end

local function keep_error(run, index, item, rec, text)
  if text == NIL then return end
  put(run.key .. ':err', name_of(index, item) .. ':' .. int(rec.attempt) .. (run.g > 1 and '@' .. int(run.g) or NIL), text)
end

-- An item: counted in its `each`; the last one ends the step.
local function item_ended(run, index, item, state, after, policy, d)
  local e, step = each_of(run, index), record(run, index, NIL)
  bump(e, state == FAILED and 'failed' or 'done', 1)
  if state == FAILED then
    e.bad = e.bad == NIL and int(item) or (#e.bad < 200 and e.bad .. ',' .. item or e.bad)
    put(e.key, 'bad', e.bad)
  end
  local over = e.done + e.failed == e.total or (e.failed > 0 and policy ~= 'continue')
  if over and step.state ~= FAILED then
    emit(run, e.failed > 0 and 'f' or 'c', index, '0', NIL, e.failed > 0 and 'items_failed' or NIL)
    step_ended(run, index, step, e.failed > 0 and FAILED or COMPLETED, after, policy, d)
  else
    list_each(run, index)
  end
end
