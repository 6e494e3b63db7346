-- A call repeated with the same number gets the recorded answer; an older number is a ghost and is told so.
local TOKEN = P .. 'caller:' .. caller
local told = nil
do
  local last = redis.call('GET', TOKEN)
  if last then
    local cut = string.find(last, '\n', 1, true)
    local n = tonumber(string.sub(last, 1, cut - 1))
    if n > tonumber(number) then return {'STALE'} end
    if n == tonumber(number) then
      told = {}
      for line in string.gmatch(string.sub(last, cut + 1) .. '\n', '(.-)\n') do told[#told + 1] = line end
    end
  end
end
local function tell(lines)
  redis.call('SET', TOKEN, number .. '\n' .. table.concat(lines, '\n'), 'PX', 3600000)
  return lines
end
