-- The ready index is queue and outbox in one. What becomes ready in this call is kept in `fresh` until the claim has chosen from it.
local fresh, pokes, poked, answered = {}, {}, {}, {}
local leases, unleased = {}, {}
local asked_by_worker = false

-- A marker says that a poke is under way; it is worth nothing after a second, so a wiped broker cannot stop wake-ups. A drain that stays a
-- while promises to look again, and spares the message too; a worker that leaves something ready calls for others all the same.
local function poke(queue)
  if poked[queue] then return end
  poked[queue] = true
  if not asked_by_worker and num(redis.call('HGET', P .. 'attended', queue)) > now then return end
  local last = answered[queue] and 0 or num(redis.call('HGET', P .. 'pokes', queue))
  if now - last >= 1000 or last > now then
    put(P .. 'pokes', queue, int(now))
    pokes[#pokes + 1] = queue
  end
end

local function answer_poke(queue, attends)
  answered[queue] = true
  put(P .. 'pokes', queue, '0')
  if attends or redis.call('EXISTS', P .. 'attended') == 1 then put(P .. 'attended', queue, attends and int(now + ATTENDED_MS) or '0') end
end

-- While last steps run, or while a run is being undone (C), timers and leases that others left behind are no longer counted, and must not
-- stand again.
local function out_of_play(run, d) return (run.ph == 'H' and d.kind ~= 'h') or (run.ph == 'C' and d.kind ~= 'u') end

local function stand(run, index, d, item)
  if stopping(run) then return end
  fresh[#fresh + 1] = {queue = queue_of(run, d), score = score_of(run, d), member = ref(run, index, item or NIL)}
  add(run, 'r', 1)
end

-- Items belong to an `each`; what undoes an item bears its number, but stands for itself.
local function in_each(run, index, item) return item ~= NIL and descriptor(run, index).kind == 'e' end

-- Puts an item back to be claimed again; its `each` is listed anew if it was not.
local function again(run, index, item)
  local e = each_of(run, index)
  redis.call('ZADD', e.key .. ':again', item, item)
  bump(e, 'again', 1)
end
local function list_each(run, index)
  local e, d = each_of(run, index), descriptor(run, index)
  if e.listed == 0 and not stopping(run) and open_items(e) and e.active < d.parallel then
    bump(e, 'listed', 1)
    stand(run, index, d)
  end
end

local function wait_until(run, kind, index, item, at)
  if stopping(run) then return end
  redis.call('ZADD', P .. 'due', int(at), kind .. ':' .. ref(run, index, item))
  run.next_at = at
  add(run, 'd', 1)
end

-- A step whose predecessors have all ended: ready, or waiting for a time, a signal or an answer.
local function unblock(run, index, flags)
  local d, rec = descriptor(run, index), new_record(flags)
  if not awaits(run, index, rec, d) then
    local e = d.kind == 'e' and each_of(run, index)
    -- Reopened, and no item that begins anew has been found yet: whoever finds one lists it.
    if not e or e.anew == NIL or open_items(e) then
      if e and not stopping(run) then bump(e, 'listed', 1) end
      stand(run, index, d)
    end
  end
  save(run, index, NIL, rec)
end

-- The first steps of a run; `s` behind one says that all before it were skipped (in a fork).
local function open_roots(run, roots)
  for index, flag in string.gmatch(roots, '(%d+)(%l*)') do unblock(run, tonumber(index), flag) end
end

-- Back to ready by the ordinary road: a due retry, a lapsed timer, a lost or returned lease.
local function put_back(run, index, item, rec)
  rec.state = READY
  rec.ready_at = now
  set_flag(rec, 'g', false)
  save(run, index, item, rec)
  local d = descriptor(run, index)
  if d.kind == 'e' and item ~= NIL then again(run, index, item); list_each(run, index); return end
  if d.kind == 'e' and not stopping(run) then bump(each_of(run, index), 'listed', 1) end
  stand(run, index, d, item)
end

local function save_ready()
  local by_queue = {}
  for _, entry in ipairs(fresh) do
    local args = by_queue[entry.queue]
    if not args then args = {}; by_queue[entry.queue] = args end
    args[#args + 1] = int(entry.score); args[#args + 1] = entry.member
  end
  for queue, args in pairs(by_queue) do
    for at = 1, #args, 1000 do redis.call('ZADD', P .. 'ready:' .. queue, unpack(args, at, math.min(at + 999, #args))) end
    poke(queue)
  end
  for at = 1, #unleased, 1000 do redis.call('ZREM', P .. 'leases', unpack(unleased, at, math.min(at + 999, #unleased))) end
  if #leases > 0 then redis.call('ZADD', P .. 'leases', unpack(leases)) end
end
