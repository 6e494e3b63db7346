-- What is noted of a run without an event (consent, a step's checkpoint, a recorded answer) is told to whoever copies it, once in a window: the
-- copy is made when that is over. `nt` says which of two copies at one event number is the later.
local function tell_noted(run)
  local last = math.max(num(redis.call('HGET', run.key, 'nt')), run.pg)
  local at = math.max(now, last + 1)
  redis.call('HSET', run.key, 'nt', int(at))
  if math.floor(at / NOTICE_MS) == math.floor(last / NOTICE_MS) then return end
  redis.call('XADD', P .. 'notices', 'MAXLEN', '~', '500', '*', 'r', run.id, 'n', redis.call('LLEN', run.key .. ':log'), 's', run.st)
end
