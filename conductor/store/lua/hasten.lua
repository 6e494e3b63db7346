-- hasten: a retry that waits for its time is due now. Idempotent by its meaning; what does not wait is left as it is.
--! args: run_id index item
--! use: partition clock run step
--! result: OK | NOT_WAITING | UNKNOWN
local run = run_of(run_id)
if not run then return {'UNKNOWN'} end
if item ~= NIL then item = tonumber(item) end
local member = 'retry:' .. ref(run, tonumber(index), item)
if not redis.call('ZSCORE', P .. 'due', member) then return {'NOT_WAITING'} end
redis.call('ZADD', P .. 'due', 'XX', int(now), member)
if is_op(run) then redis.call('ZADD', P .. 'queued:' .. run.qr, 'XX', int(now), run.id) end
return {'OK'}
