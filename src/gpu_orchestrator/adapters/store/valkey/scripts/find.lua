-- Find tasks by the start of their id. Reads a part of the lists per call, so that other clients do not wait long.
-- Arguments: owner or '' for all, start of the id, the number of the state to go on with, cursor in its list, most ids
-- Answers {ids, next state or 0 if all lists were read, next cursor}
local STATES = {'queued', 'assigned', 'running', 'completed', 'failed', 'cancelled', 'dead', 'scheduled'}
local READ = 10000
local owner, start, state, cursor, most = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local place = owner == '' and 's:' or 'o:' .. owner .. ':'
local found, read = {}, 0
while state <= #STATES and read < READ and #found < most do
  local page = redis.call('ZSCAN', P .. place .. STATES[state], cursor, 'MATCH', start .. '*', 'COUNT', READ / 2)
  cursor, read = page[1], read + READ / 2
  for at = 1, #page[2], 2 do found[#found + 1] = page[2][at] end
  if cursor == '0' then state = state + 1 end
end
return cmsgpack.pack({{}, {found, state <= #STATES and state or 0, cursor}})
