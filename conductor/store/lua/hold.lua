-- hold: nothing of a scope (`all`, `workflow:x`, `queue:x`) is claimed in this partition from now on. Starts are still accepted.
-- The first reason, and its time, stay.
--! args: caller number scope reason
--! use: partition clock token
--! result: OK | ALREADY
if told then return told end
local new = redis.call('HSETNX', P .. 'holds', scope, int(now) .. ';' .. reason)
return tell({new == 1 and 'OK' or 'ALREADY'})
