#!lua flags=allow-oom
-- Add a sample to the cluster's history: a ring of buckets per resolution, so it never grows.
-- Arguments: fence, rings {name, bucket ms, buckets}, measured {name, value, ...} by the leader
-- Answers whether it was written: only the leader may write
--   h:<ring>  hash  slot -> {bucket, samples, sums {name -> sum}, greatest {name -> value}, counters {name -> value}}
local fence, rings, measured = ARG[1], ARG[2], ARG[3]
if not leads(fence) then return answer(fence, false) end

local values, counters = {}, {}
for at = 1, #measured, 2 do values[measured[at]] = measured[at + 1] end
for _, state in ipairs({'queued', 'assigned', 'running'}) do
  values[state] = redis.call('ZCARD', P .. 's:' .. state)
end
for _, name in ipairs({'submitted', 'completed', 'failed', 'cancelled', 'dead', 'requeued', 'expired'}) do
  counters[name] = tonumber(redis.call('HGET', P .. 'stats', name) or 0)
end

for _, ring in ipairs(rings) do
  local key, bucket = P .. 'h:' .. ring[1], math.floor(NOW / ring[2])
  local slot = text(bucket % ring[3])
  local known = redis.call('HGET', key, slot)
  local row = known and cmsgpack.unpack(known)
  if not row or row[1] ~= bucket then row = {bucket, 0, {}, {}, {}} end
  row[2] = row[2] + 1
  for name, value in pairs(values) do
    row[3][name] = (row[3][name] or 0) + value
    row[4][name] = math.max(row[4][name] or value, value)
  end
  row[5] = counters
  redis.call('HSET', key, slot, cmsgpack.pack(row))
end
return answer(fence, true)
