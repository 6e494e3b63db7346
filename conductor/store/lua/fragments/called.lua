-- What a step calls: `run;generation` it is bound to, then the step if that calls a child run, or `@place`, `name` and `text` if its code calls an
-- operation: where the step stands, and what is written beside it in the script that makes the operation, so that it is never forgotten that it was.
local calls = {}  -- one name, because a script may have only so many
function calls.read(bond)
  local up, rest = string.match(bond, '^([^;]*;?[^;]*);?(.*)$')
  local at, name, text = string.match(rest, '^@(.-)\n(.-)\n(.*)$')
  return up, at and {place = at, name = name, text = text}, at and NIL or rest
end
-- How often the run was given a new life: what failed in one is called anew in the next.
function calls.life(run) return redis.call('HGET', run.key, 'lv') or '0' end
function calls.bind(parent, run, called)
  set(parent, 'op', '1')
  redis.call('HDEL', parent.key, 'pk')  -- no event tells a parker of it
  redis.call('SADD', parent.key .. ':ops', run.id)
  if not called then return end
  put(run.key, 'cs', called.place)
  put(run.key, 'ul', calls.life(parent))
  redis.call('HSET', parent.key .. ':once', called.place .. ':' .. called.name, called.text)
end
