-- start_run: writes a run, its first ready steps and its active entry in one go. The run id, and the key, make it idempotent.
-- After the named arguments: `lines` pairs (index, line) of the graph, then `records` triples (index, record, index kept from).
--! args: run_id workflow graph input queue priority session key digest tags delay start_at expires deadline retain_completed retain_failed key_retention steps roots hooks eaches forked_from queue_reason up idle_timeout tag lane lane_terms_given lane_turn limit_keys doc lines records
--! use: partition clock straight_start run save step each waiters ready lane give keep stub called
-- With a `tag` the first step is claimed for the caller at once, and the answer ends with what it holds; asked again, it still holds it.
-- Not where the capability, or everything, is paused.
-- In a lane the run has a place at once, or is queued; past the queue it is LANE_FULL, and nothing is written.
--! result: OK notice pokes run_id claim | EXISTS … run_id claim | CONFLICT … run_id | NEED_GRAPH | RUN_ENDED | TOO_DEEP | LANE_FULL
local RUN = P .. 'run:' .. run_id

if redis.call('EXISTS', RUN) == 1 then
  local first = run_of(run_id)
  local said = forked_from ~= NIL and digest ~= NIL and redis.call('HGET', RUN, 'kd')  -- a fork's key is part of its id
  if said and said ~= digest then return {'CONFLICT', '', '', run_id, ''} end
  local rec = record(first, 0, NIL)
  local mine = tag ~= NIL and first.ot == tag and rec and rec.state == RUNNING and not ended(first)
  return {'EXISTS', '', '', run_id, mine and line_of(first, 0, NIL, rec, descriptor(first, 0), 0) or ''}
end
if stub_of(run_id) then return {'EXISTS', '', '', run_id, ''} end
if forked_from ~= NIL and redis.call('EXISTS', P .. 'run:' .. forked_from) == 0 then return {'UNKNOWN', '', '', run_id, ''} end
local called, ps
up, called, ps = calls.read(up)
if up ~= NIL and unbound({up = up, ps = ps}) then return {'RUN_ENDED', '', '', run_id, ''} end
local root, depth, ancestor = NIL, 0, {up = up}
while ps ~= NIL and ancestor.up ~= NIL do ancestor = above(ancestor); root, depth = ancestor.id, depth + 1 end
if depth > DEPTH then return {'TOO_DEEP', '', '', run_id, ''} end
local KEY = key ~= NIL and P .. 'key:' .. workflow .. (lane ~= NIL and '@' .. lane or NIL) .. ':' .. key
if KEY then
  local taken = redis.call('GET', KEY)
  if taken then
    local id, same = string.match(taken, '^(.-);(.*)$')
    return {same == digest and 'EXISTS' or 'CONFLICT', '', '', id, ''}
  end
end
-- One that begins later asks for its place then.
if lane ~= NIL and num(delay) == 0 and num(start_at) <= now and lane_full({ln = lane, said = lane_terms_given, key = RUN}) then
  return {'LANE_FULL', int(redis.call('SCARD', lane_key(lane, 'active'))), int(redis.call('ZCARD', lane_key(lane, 'queue'))), run_id, ''}
end
if doc == NIL and redis.call('EXISTS', P .. 'graph:' .. graph) == 0 then return {'NEED_GRAPH', '', '', run_id, ''} end

local at = 34
if doc ~= NIL then
  put(P .. 'graph:' .. graph, 'doc', doc)
  for i = 1, tonumber(lines) do
    put(P .. 'graph:' .. graph, ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  write_all()
  writes, write_order = {}, {}
end
redis.call('HINCRBY', P .. 'graphs', graph, 1)
if key ~= NIL then redis.call('SET', KEY, run_id .. ';' .. digest) end

local fields = {w = workflow, h = graph, st = RUN_RUNNING, g = '1', q = queue, p = priority, s = session, k = key, t = int(now), i = input,
  tg = tags, rc = retain_completed, rf = retain_failed, l = steps, hk = hooks, es = eaches, fk = forked_from, qr = queue_reason, up = up,
  ps = ps, rt = root, ln = lane, lt = lane_terms_given, lk = lane_turn, it = idle_timeout, lm = limit_keys, kd = digest}
if key ~= NIL then fields.kr = key_retention end
-- `@ms` is a moment, a plain number a time from now.
local function moment(text) return string.sub(text, 1, 1) == '@' and num(string.sub(text, 2)) or (num(text) > 0 and now + num(text) or 0) end
if moment(deadline) > 0 then fields.dl = int(moment(deadline)) end
for name, value in pairs(fields) do if value ~= NIL then put(RUN, name, value) end end

local run = new_run(run_id, fields)
run.said, run.lt, run.lk = lane_terms_given, lane_terms_given, lane_turn
keep_steps(run, forked_from, at, tonumber(records))
local queued, due = false, math.max(num(delay) > 0 and now + num(delay) or 0, num(start_at))
if due > now then
  set(run, 'ro', roots)
  redis.call('ZADD', P .. 'due', int(due), 'start:' .. run_id)
  add(run, 'd', 1)
  run.next_at = due
else
  due = 0
  queued = lane ~= NIL and not enter_lane(run, roots)
  if not queued then open_roots(run, roots) end
end
do
  local totals = {}
  for index, e in pairs(run.eaches) do if e.total > 0 then totals[#totals + 1] = index .. '=' .. int(e.total) end end
  emit(run, 's', run.g, (string.gsub(roots, '%l', '')), int(due), table.concat(totals, ','), queued and lane or NIL)
end
if queued then admit(lane) end
if moment(expires) > 0 then redis.call('ZADD', P .. 'due', int(moment(expires)), 'expires:' .. run_id) end
if fields.dl then redis.call('ZADD', P .. 'due', fields.dl, 'deadline:' .. run_id) end
redis.call('ZADD', P .. (is_op(run) and 'ops' or 'runs'), int(now), run_id)
if up ~= NIL then calls.bind(above(run), run, called) end
progress(run)
-- What is paused is claimed by no caller either; it stands ready, and goes on with everything else.
local paused = tag ~= NIL and (redis.call('HEXISTS', P .. 'holds', 'all') == 1
  or redis.call('HEXISTS', P .. 'holds', 'capability:' .. descriptor(run, 0).capability) == 1)
if tag ~= NIL and not paused then
  for _, entry in ipairs(fresh) do
    local _, index = parse_ref(entry.member)
    claim_step(run, index, record(run, index, NIL), descriptor(run, index))
  end
  fresh = {}
end
local lines = refs()
save_ready()
save_runs()
keep_clock()
write_all()
return {'OK', run.notice, table.concat(pokes, ','), run_id, lines[1] or ''}
