-- What a worker needs to run an attempt: session, deadline, input and the results it depends on. Read outside the recorded answer, they never change.
local function result_of(run, index) return redis.call('HGET', shard(run, index), index .. 'r') end

local function payloads(line, known, sent)
  local id, index, item = string.match(line, '^(.-);(%d+);(%d*);')
  index = tonumber(index)
  local run = run_of(id)
  if not run then return {line} end
  local d = descriptor(run, index)
  if run.dl == nil then run.dl = redis.call('HGET', run.key, 'dl') or NIL end
  local reply = {line, run.dl, run.s, false}
  if d.input and not known[id] then reply[4] = redis.call('HGET', run.key, 'i'); known[id] = true end
  local group = id .. ';' .. index
  local needs = list_of(d.needs)
  if #needs <= 16 and not sent[group] then
    sent[group] = true
    for _, need in ipairs(needs) do
      if need == d.source then reply[#reply + 1] = false else reply[#reply + 1] = result_of(run, tonumber(need)) end
    end
  end
  return reply
end
local function with_payloads(lines, from, known)
  local full, sent = {}, {}
  for i = from, #lines do full[#full + 1] = payloads(lines[i], known, sent) end
  return full
end
