-- A lane that was lost with its index: its runs are its authority.
-- Of a run that has one: a place, or one in the queue. One that is undone keeps its place and asks for none, one that is delayed has yet to ask.
local function has_its_place(run)
  if run.ln == NIL or ended(run) or run.st == RUN_COMPENSATING then return true end
  if run.st == RUN_QUEUED then return redis.call('ZSCORE', lane_key(run.ln, 'queue'), run.id) end
  return redis.call('HEXISTS', run.key, 'ro') == 1 or redis.call('SISMEMBER', lane_key(run.ln, 'active'), run.id) == 1
end
-- Lost with the index, and back: whoever was queued stands before all who come, in the order of their starts. Nobody is admitted before
-- those who have a place have had the time to be back as well.
local function regain_place(run)
  if has_its_place(run) then return end
  local terms = lane_terms(run)
  if redis.call('EXISTS', lane_key(run.ln)) == 0 then keep_terms(run, terms) end
  if run.st ~= RUN_QUEUED then redis.call('SADD', lane_key(run.ln, 'active'), run.id); return end
  redis.call('ZADD', lane_key(run.ln, 'queue'), int(run.t - 4e12), run.id)
  redis.call('ZADD', P .. 'due', 'NX', int(now + 15000), 'admit:' .. run.ln)
  if terms.timeout > 0 then redis.call('ZADD', P .. 'due', 'NX', int(now + terms.timeout), 'lane:' .. run.id) end
end
