-- Read the buckets of one ring.
-- Arguments: ring name, bucket ms, buckets
-- Answers {now, buckets as `record` wrote them, in no order}; buckets of an earlier round of the ring are left out
local oldest = math.floor(NOW / ARG[2]) - ARG[3]
local found = {}
for _, packed in ipairs(redis.call('HVALS', P .. 'h:' .. ARG[1])) do
  local row = cmsgpack.unpack(packed)
  if row[1] > oldest then found[#found + 1] = row end
end
return cmsgpack.pack({{}, {NOW, found}})
