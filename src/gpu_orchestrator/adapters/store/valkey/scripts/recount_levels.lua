-- Correct the numbers of waiting tasks by priority level, after a new leader counted them page by page. A number that
-- changed meanwhile stays: it cannot be told which of the changes the pages include.
-- Arguments: fence, numbers before {level, number, ...}, numbers counted {level, number, ...}
-- Answers false if the caller does not lead, else true
local fence = ARG[1]
if not leads(fence) then return answer(fence, false) end
local function read(flat)
  local found = {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end
local before, counted = read(ARG[2]), read(ARG[3])
for _, level in ipairs({'0', '1', '2', '3'}) do
  local now = redis.call('HGET', P .. 'levels', level) or '0'
  if now == (before[level] or '0') and now ~= (counted[level] or '0') then
    redis.call('HSET', P .. 'levels', level, counted[level] or '0')
  end
end
return answer(fence, true)
