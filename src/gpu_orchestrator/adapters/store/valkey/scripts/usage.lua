-- Read what owners use: GPU time of the day, and the tasks of one owner.
-- Arguments: owner or ''
-- Answers {ms until the day ends, {owner, GPU ms of today, ...}, tasks of that owner that wait, and that are active}
local owner = ARG[1]
local waiting, active = 0, 0
if owner ~= '' then
  waiting = redis.call('ZCARD', P .. 'o:' .. owner .. ':queued') + redis.call('ZCARD', P .. 'o:' .. owner .. ':scheduled')
  active = redis.call('ZCARD', P .. 'o:' .. owner .. ':assigned') + redis.call('ZCARD', P .. 'o:' .. owner .. ':running')
end
return cmsgpack.pack({{}, {86400000 - NOW % 86400000, redis.call('HGETALL', P .. 'used:' .. day()), waiting, active}})
