-- List the files of an owner, those that expire last first.
-- Arguments: owner, how many to skip, most
-- Answers {ids, how many there are, bytes of all}
local list, used = P .. 'files:' .. ARG[1], 0
redis.call('ZREMRANGEBYSCORE', list, '-inf', NOW)
local all, ids = redis.call('ZRANGE', list, 0, -1, 'REV'), {}
for number, each in ipairs(all) do
  local bytes, id = string.match(each, '^(%d+) (.+)$')
  used = used + tonumber(bytes)
  if number > ARG[2] and #ids < ARG[3] then ids[#ids + 1] = id end
end
return cmsgpack.pack({{}, {ids, #all, used}})
