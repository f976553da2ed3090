-- What happened after an event, oldest first; without one, the latest.
-- Arguments: after {generation, number}, {0, 0}: from the first that is kept, {}: the latest; most
-- Answers {1 if there were others between `after` and these that are gone, id to go on from, events {id, name, owner,
--   ms, data}}. Where `after` is of another store (emptied, restored) there are no events, and the id is the last one
local after, most = ARG[1], ARG[2]
local key = P .. 'events'
local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
local last = newest[1] and newest[1][1] or '0-0'
local found, lost = {}, false
if #after == 0 then
  for _, entry in ipairs(most > 0 and redis.call('XREVRANGE', key, '+', '-', 'COUNT', most) or {}) do
    table.insert(found, 1, entry)
  end
else
  local here = text(after[1]) .. '-' .. text(after[2])
  found = redis.call('XRANGE', key, '(' .. here, '+', 'COUNT', most)
  local first = found[1] and found[1][1]
  if here == '0-0' then
    lost = first and not string.find(first, '-0$')
  elseif first then
    lost = first ~= text(after[1]) .. '-' .. text(after[2] + 1)
  else
    lost = last ~= here
  end
end
local events = {}
for number, entry in ipairs(found) do
  local fields = entry[2]
  events[number] = {entry[1], fields[2], fields[4], tonumber(fields[6]), fields[8]}
end
return cmsgpack.pack({{}, {lost and 1 or 0, found[#found] and found[#found][1] or last, events}})
