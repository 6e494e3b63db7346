-- Giving: fence and lease of one step or item to the caller of this script.
local batch = {}
local function give(run, index, item, rec, d)
  rec.state = RUNNING
  rec.fence = next_fence()
  rec.attempt = rec.attempt + 1
  if run.rs ~= NIL then set_flag(rec, 'o', true) end  -- it may have run before the store lost it: its effect is asked about first
  rec.wait = int(math.max(0, now - rec.ready_at))
  run.records[slot_of(index, item)] = rec  -- `refs` saves it, when it is known whether it was claimed alone
  leases[#leases + 1] = int(now + d.lease)
  leases[#leases + 1] = ref(run, index, item)
  add(run, 'a', 1)
  if run.ot ~= tag then set(run, 'ot', tag) end
  progress(run)
  batch[#batch + 1] = {run = run, index = index, item = item, rec = rec, d = d}
end

local function claim_step(run, index, rec, d, item)
  add(run, 'r', -1)
  give(run, index, item or NIL, rec, d)
  emit(run, 'k', index, int(rec.fence), item or NIL, tag)
end

-- What a claim says of itself, ids and fences only; `payloads` adds the rest, the same for a first answer and a repeated one.
local function line_of(run, index, item, rec, d, total)
  return table.concat({run.id, int(index), item == NIL and NIL or int(item), int(rec.fence), int(run.g), int(rec.attempt), rec.flags, run.w, run.h,
    int(d.lease), rec.wait, int(total), int(now)}, ';')
end
local function refs()
  local lines = {}
  for _, b in ipairs(batch) do
    set_flag(b.rec, 'b', #batch > 1)
    save(b.run, b.index, b.item, b.rec)
    lines[#lines + 1] = line_of(b.run, b.index, b.item, b.rec, b.d, b.d.kind == 'e' and b.item ~= NIL and each_of(b.run, b.index).total or 0)
  end
  return lines
end
