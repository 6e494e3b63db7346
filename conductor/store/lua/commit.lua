-- commit: running → completed | skipped | retry_pending | waiting | failed | ready (given back), then claims what this worker does next.
-- Each outcome is eleven arguments: run index item fence generation kind ran after policy note text
--   note: list total and how it was completed, as `total:how` (C), `ms:kind` (T), child (W), reason (Z, F, B); `:d` behind T, F and B: in doubt
--   text: payload (C; empty: what satisfied the waiter stays) or error (T, F, B)
--! args: caller number queue limit code tag count
--! use: partition clock token straight run save step each waiters ready straight_end lane bound undo close give claim choose payloads outcome_guard outcome
--! result: OK now pokes answers payloads | NO_CODE | STALE
limit, asked_by_worker = tonumber(limit), true
local known = {}

local function move(run, index, item, rec, kind, after, policy, note, text)
  local d = descriptor(run, index)
  if kind ~= COMPLETED and kind ~= SKIPPED then set_flag(rec, 'd', string.sub(note, -2) == ':d' or (kind == 'B' and has(rec.flags, 'd'))) end
  if d.kind == 'u' and (kind == COMPLETED or kind == SKIPPED or kind == FAILED) then
    keep_error(run, index, item, rec, kind == FAILED and text or NIL)
    if d.source == NIL and kind == COMPLETED then put(run.key, 'un', string.match(note, '^%d+')) end
    undo_ended(run, index, item, rec, kind, d)
  elseif kind == COMPLETED or kind == SKIPPED then
    if kind == COMPLETED then
      local key, field = place(run, index, item)
      if text ~= NIL then put(key, field .. 'r', text) end  -- what a signal or an agent gave stands there already
      local total = string.match(note, '^%d+')
      if total then total_for_eaches(run, index, after, total) end
    end
    if item == NIL then step_ended(run, index, rec, kind, after, policy, d)
    else rec.state = kind; save(run, index, item, rec); item_ended(run, index, item, kind, after, policy, d) end
  elseif kind == RETRY_PENDING then
    keep_error(run, index, item, rec, text)
    -- Not its own failure: a call is under way, whose repeat comes back here; or nobody could be asked now what its last attempt has done.
    if string.match(note, 'operation_pending') then rec.attempt = rec.attempt - 1; set_flag(rec, 'o', true)
    elseif string.match(note, ':unasked') then rec.attempt = rec.attempt - 1 end
    rec.state, rec.losses, rec.flags = kind, 0, (string.gsub(rec.flags, 'w%d+', ''))
    save(run, index, item, rec)
    wait_until(run, 'retry', index, item, now + num(string.match(note, '^%d+')))
    if in_each(run, index, item) then list_each(run, index) end
  elseif kind == WAITING then
    -- It has called another workflow. The child may have ended before its parent could wait for it.
    rec.attempt, rec.losses, rec.state = rec.attempt - 1, 0, WAITING
    put(shard(run, index), index .. 'c', note)
    local child = run_of(note)
    if child and not ended(child) then
      if not stopping(run) then add(run, 'ch', 1) end
      save(run, index, item, rec)
    else
      set_flag(rec, 'v', true)
      emit(run, 'u', index, NIL, 'child')
      put_back(run, index, NIL, rec)
    end
  elseif kind == FAILED then
    keep_error(run, index, item, rec, text)
    run.why = string.match(note, '^[^:]*')
    if item == NIL then step_ended(run, index, rec, kind, after, policy, d)
    else rec.state = kind; save(run, index, item, rec); item_ended(run, index, item, kind, after, policy, d) end
  else
    rec.attempt = rec.attempt - 1
    put_back(run, index, item, rec)
  end
end

local notes = {ranges = {}, letters = {[COMPLETED] = 'c', [SKIPPED] = 'z', [RETRY_PENDING] = 't', [FAILED] = 'f', [WAITING] = 'V', B = 'b'}}
-- Items of an each that complete are told together. An undo is told at once: the next one stands in the same script, and its event comes after.
function notes.take(run, index, item, f, kind, note)
  local ranges = notes.ranges
  local last = ranges[#ranges]
  if kind == COMPLETED and in_each(run, index, item) and note == NIL then
    if last and last.run == run and last.index == index and last.to + 1 == item and last.fence + item - last.from == f then last.to = item
    else ranges[#ranges + 1] = {run = run, index = index, from = item, to = item, fence = f} end
    return
  end
  emit(run, notes.letters[kind], index, int(f), item, (string.gsub(note, ':', ';')))
end
function notes.flush()
  for _, r in ipairs(notes.ranges) do emit(r.run, 'c', r.index, int(r.fence), r.from .. '-' .. r.to) end
  notes.ranges = {}
end

local function record_outcome(at)
  local id, index, item, f, generation, kind, ran, after, policy, note, text = unpack(ARGV, at, at + 10)
  index, f, generation = tonumber(index), tonumber(f), tonumber(generation)
  if item ~= NIL then item = tonumber(item) end
  local run = run_of(id)
  local rec = run and record(run, index, item)
  local answer = answer_for(run, rec, f, generation)
  if answer == 'CANCELLED' then
    if unbound(run) then end_unbound(run) end
    let_go(run, index, item, rec, f)
  end
  if answer ~= 'OK' then return answer end
  known[id] = true
  rec.ran = ran
  unleased[#unleased + 1] = ref(run, index, item)
  add(run, 'a', -1)
  local each = in_each(run, index, item)
  if each then bump(each_of(run, index), 'active', -1) end
  progress(run)
  notes.take(run, index, item, f, kind, note)
  local e = each and each_of(run, index)
  if e and e.done + e.failed + 1 == e.total then notes.flush() end
  move(run, index, item, rec, kind, indexes_of(after), policy, note, text)
  return answer
end

if not told then
  local answers = {}
  for i = 1, tonumber(count) do answers[i] = straight_end(8 + (i - 1) * 11) or record_outcome(8 + (i - 1) * 11) end
  notes.flush()
  for _, run in ipairs(met) do settle(run, 'step_failed') end
  if limit > 0 then choose(queue) end
  if no_code then poked[queue] = true end  -- it says what it can run and looks again; a poke would only bring it back to this answer
  local lines = refs()
  if not held('all') and not held('queue:' .. queue) and redis.call('ZCARD', P .. 'ready:' .. queue) > 0 then poke(queue) end
  save_ready()
  save_runs()
  keep_clock()
  write_all()
  told = {no_code and 'NO_CODE' or 'OK', int(now), table.concat(pokes, ','), table.concat(answers, ',')}
  for _, line in ipairs(lines) do told[#told + 1] = line end
  tell(told)
end
return {told[1], told[2], told[3], list_of(told[4]), with_payloads(told, 5, known)}
