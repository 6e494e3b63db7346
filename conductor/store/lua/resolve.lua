-- resolve: a person's word on an effect in doubt, kept until the step is claimed again. The last word before that counts.
--! args: run_id index item word
--! use: partition run step
--! result: OK | NOT_IN_DOUBT | UNKNOWN
local run = run_of(run_id)
if not run then return {'UNKNOWN'} end
if item ~= NIL then item = tonumber(item) end
local rec = record(run, tonumber(index), item)
if not rec or rec.state ~= FAILED or not has(rec.flags, 'd') then return {'NOT_IN_DOUBT'} end
redis.call('HSET', run.key .. ':once', (item == NIL and index or (index .. ':' .. item)) .. ':?', word)
return {'OK'}
