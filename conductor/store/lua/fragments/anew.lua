-- A reopened `each` may have a hundred thousand items that begin anew: they are reached some pages at a time, so that no call is long. `anew`
-- of the each is `from-to`, what has yet to be looked at; the caller goes on, and if it dies, the due sweep does. Gives whether more is left.
local function begin_page(run, index, from, to, members)
  local key, wanted, texts_of, n = item_key(run, index, from), {}, {}, #members
  for item = from, to do wanted[#wanted + 1] = int(item) end
  for i, text in ipairs(redis.call('HMGET', key, unpack(wanted))) do
    local state = string.sub(text or NIL, 1, 1)
    if state ~= COMPLETED and state ~= SKIPPED then
      -- What nobody will hear any more is in doubt; code that has run is asked about before it runs again.
      local old = text and parse(text)
      local flags = (old and (state == RUNNING or has(old.flags, 'd')) and 'd' or NIL) .. (old and (old.attempt > 0 or has(old.flags, 'o')) and 'o' or NIL)
      texts_of[flags] = texts_of[flags] or format(new_record(flags))
      -- What the life before left in an index goes with its record; this very call may be about to look at it.
      if state == RUNNING then unleased[#unleased + 1] = ref(run, index, wanted[i]) end
      if state == RETRY_PENDING then redis.call('ZREM', P .. 'due', 'retry:' .. ref(run, index, wanted[i])) end
      if state == RUNNING or state == RETRY_PENDING then run.records[slot_of(index, wanted[i])] = new_record(flags) end
      put(key, wanted[i], texts_of[flags])
      members[n + 1], members[n + 2], n = wanted[i], wanted[i], n + 2
    end
  end
end

local function begin_items_anew(run, pages)
  local left, more = tonumber(pages), false
  if run.ph ~= NIL then return false end
  for _, index in ipairs(indexes_of(redis.call('HGET', run.key, 'es') or NIL)) do
    local e = each_of(run, index)
    local first, to = string.match(e.anew, '^(%d+)-(%d+)$')
    first, to = tonumber(first), tonumber(to)
    local from, members = first, {}
    while from and from <= to and left > 0 do
      local last = math.min(to, math.floor(from / 64) * 64 + 63)
      begin_page(run, index, from, last, members)
      from, left = last + 1, left - 1
    end
    if from and from > first then
      emit(run, 'G', index, first .. '-' .. (from - 1))
      e.anew = from <= to and from .. '-' .. to or NIL
      put(e.key, 'anew', e.anew)
      if #members > 0 then
        redis.call('ZADD', e.key .. ':again', unpack(members))
        bump(e, 'again', #members / 2)
      end
      local rec = record(run, index, NIL)
      if rec and (rec.state == READY or rec.state == RUNNING) then list_each(run, index) end
    end
    more = more or e.anew ~= NIL
  end
  if more then redis.call('ZADD', P .. 'due', int(now), 'anew:' .. run.id) else redis.call('ZREM', P .. 'due', 'anew:' .. run.id) end
  return more
end
