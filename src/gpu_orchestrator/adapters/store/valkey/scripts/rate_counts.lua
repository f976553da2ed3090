#!lua flags=allow-oom
-- Add the requests that a process admitted since its last call; read how many all processes admitted.
-- Arguments: windows {name, ms of one slot, slots, {slot, count, ...}}
-- Answers per window {slot, count, ...} of the slots that still count
local told = {}
for number, each in ipairs(ARG[1]) do
  local key, slot_ms, slots, counts = P .. 'rate:' .. each[1], each[2], each[3], each[4]
  for at = 1, #counts, 2 do redis.call('HINCRBY', key, text(counts[at]), counts[at + 1]) end
  local oldest, now = math.floor(NOW / slot_ms) - slots, {}
  local all = redis.call('HGETALL', key)
  for at = 1, #all, 2 do
    if tonumber(all[at]) < oldest then
      redis.call('HDEL', key, all[at])
    else
      now[#now + 1] = tonumber(all[at])
      now[#now + 1] = tonumber(all[at + 1])
    end
  end
  redis.call('PEXPIRE', key, slot_ms * (slots + 1))
  told[number] = now
end
return cmsgpack.pack({{}, told})
